"""Tests of the thin etcd v3 client, on real etcd."""
