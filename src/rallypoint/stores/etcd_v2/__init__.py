"""The store on etcd's API v2, and the client of that API."""
