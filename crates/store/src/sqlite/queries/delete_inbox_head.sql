delete from arrived where task <= ?1
