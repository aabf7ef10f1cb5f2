"""Any method made private, robust, secure or timely: methods around methods."""
