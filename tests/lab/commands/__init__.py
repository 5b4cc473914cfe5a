"""What people type, on a simulated GPU: recipes, commands, trainers of libraries, notebooks, examples."""
