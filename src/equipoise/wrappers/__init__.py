"""Wrappers that make any method private, robust, secure, or fit for a deadline."""
