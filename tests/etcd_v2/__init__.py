"""What uses etcd's API v2: the store, the backend `etcd-v2`, the older `etcd` handler, on real etcd servers."""
