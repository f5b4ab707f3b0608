"""The backends on etcd's API v2, on real etcd servers."""
