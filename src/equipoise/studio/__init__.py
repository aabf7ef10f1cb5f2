"""Local web pages: from tables to a decision in the browser (`equipoise studio`)."""
