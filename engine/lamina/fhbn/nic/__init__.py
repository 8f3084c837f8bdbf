"""The RDMA devices of this machine, and what keeps the engines from using them."""
