"""What ended jobs leave: artifacts of tasks and of networks."""
