"""The store over TCP: its client, its server, and the wire format of torch's TCPStore between them."""
