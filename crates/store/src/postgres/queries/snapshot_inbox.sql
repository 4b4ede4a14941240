SELECT task FROM tidegate.inbox
