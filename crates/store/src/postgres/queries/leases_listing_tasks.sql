-- The leases that list some of these tasks. There are no more leases than claims under way.
SELECT token FROM tidegate.leases WHERE tasks && $1
