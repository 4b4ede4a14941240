select oldest from migration where version = ?1
