"""Programs that the engine lays into every workspace, at /usr/libexec/tclone/osworld: run there by whatever Python the image has, from 3.9 on."""
