#!/usr/bin/env bash
# PostgreSQL's programs for the tests, on a Debian machine that may be installed on; nothing is started.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

apt-get update -qq
apt-get install -y -qq --no-install-recommends postgresql-common
# Its package would create and start a cluster of its own.
mkdir -p /etc/postgresql-common/createcluster.d
echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/mlx-tests.conf
apt-get install -y -qq --no-install-recommends postgresql
