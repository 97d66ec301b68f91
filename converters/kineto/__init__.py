"""PyTorch Kineto traces: reading, understanding and converting them."""
