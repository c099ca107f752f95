useradd --create-home --uid 1000 --shell /bin/bash user
passwd --lock root >/dev/null
# Packages start a cluster of their own where they can; the tests make theirs.
rm -rf /var/lib/postgresql/17
