"""Programs over several devices: marks on weights and inputs, propagated; one program for each device."""
