"""Groups of processes whose programs exchange values: transports on the host, and a launcher."""
