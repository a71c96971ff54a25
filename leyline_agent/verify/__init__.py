"""What holds on a running server: exactness, isolation, FORGET, leaks."""
