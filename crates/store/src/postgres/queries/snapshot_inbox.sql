SELECT task FROM tidegate.arrived
