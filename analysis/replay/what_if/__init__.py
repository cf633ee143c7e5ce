"""What-ifs: causes removed, other speeds, links and strategies."""
