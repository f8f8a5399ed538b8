"""Programs on CPUs: threads, pages, executable code, the tables that the driver reads."""
