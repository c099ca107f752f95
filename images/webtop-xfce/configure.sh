useradd --create-home --uid 1000 --shell /bin/bash user
passwd --lock root >/dev/null
sed -i 's/^#force_color_prompt=yes/force_color_prompt=yes/' /home/user/.bashrc
install -d -o user -g user /home/user/Desktop /home/user/Documents /home/user/Downloads /home/user/Pictures
# Every cache a first start would otherwise have to make, while the viewer waits.
fc-cache --system-only
for theme in /usr/share/icons/*/index.theme; do gtk-update-icon-cache --quiet --force "${theme%/index.theme}" || true; done
update-desktop-database -q
update-mime-database /usr/share/mime
