insert into arrived (task) values (?1)
