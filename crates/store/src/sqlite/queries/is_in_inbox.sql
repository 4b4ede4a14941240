select 1 from arrived where task = ?1
