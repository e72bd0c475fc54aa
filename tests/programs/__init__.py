"""Random programs: forwards made of views, writes and reads, and a reference that runs them."""
