"""What everything else stands on: errors for people, random numbers by counter, trees of tensors, files."""
