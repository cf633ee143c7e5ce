"""Grid'5000: plan, request, reserve, measure and release nodes through EnOSlib."""
