"""What people read: the HTML report, the terminal summary, CI summaries and the MLflow mirror."""
