"""What all readers of foreign traces share."""
