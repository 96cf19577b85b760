#!/bin/sh
# Databases and schema of Temporal on PostgreSQL. Every step does nothing when it was done before, so that a start
# after an upgrade of the images brings the schema up to date. Connection: SQL_* in the environment.
set -eu

setup() {
  database=$1
  versions=/etc/temporal/schema/postgresql/v12/$2/versioned
  echo "schema of $database"
  # Both are refused when they were done before; if they failed for another reason the update below fails too.
  temporal-sql-tool --db "$database" create || echo "$database exists already"
  temporal-sql-tool --db "$database" setup-schema -v 0.0 || echo "$database has a schema already"
  temporal-sql-tool --db "$database" update-schema -d "$versions"
}

setup temporal temporal
setup temporal_visibility visibility
