"""The pages and figures of the paper's studies."""
