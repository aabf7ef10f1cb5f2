"""Any method made private or late: methods around methods."""
