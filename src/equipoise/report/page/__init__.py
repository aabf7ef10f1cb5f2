"""The report as one page of HTML that opens without a network."""
