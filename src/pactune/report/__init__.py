"""From journals to numbers, plots and pages."""
