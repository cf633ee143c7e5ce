"""Start barrier, progress reports and stopping rules that processes of a training share."""
