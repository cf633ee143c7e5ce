"""ByteDance's straggler traces, read and written."""
