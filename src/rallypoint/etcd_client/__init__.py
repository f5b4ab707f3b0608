"""A thin etcd v3 client; it knows nothing of rendezvous."""
