/* The workspace's own /dev. */
#ifndef TCLONE_DEVICE_DIRECTORY_H
#define TCLONE_DEVICE_DIRECTORY_H

#include "error.h"

/*
 * Make what lies in the branch's /dev (`to`) the same as in the source's (`from`, without what is mounted in it). What is mounted in the branch's stays.
 * Nothing is followed.
 */
int device_directory_copy(int from, int to, struct error *err);

#endif
