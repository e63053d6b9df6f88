"""Accept, recover or take the bonus token."""
