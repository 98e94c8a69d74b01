"""What training minimises: functions `(model, batch, rng) -> Loss`, combined as weighted lists."""
