"""One module for each rule that the mechanism has to keep."""
