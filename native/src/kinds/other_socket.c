/* Sockets of families that cannot be forked, refused by their family's name. */
#include "../descriptors.h"
#include "../doubt.h"
#include "../plan.h"
#include "kinds.h"
#include "sock_options.h"

#include <fcntl.h>
#include <sys/socket.h>

static bool match(const struct description *description)
{
    return S_ISSOCK(description->st.st_mode) && !(description->flags & O_PATH) && socket_number(description->local, SO_DOMAIN) >= 0;
}

static const char *family_name(int family)
{
    switch (family) {
    case AF_VSOCK: return "a socket to the virtual machine's host (vsock)";
    case AF_ALG: return "a socket of the kernel's cryptography (AF_ALG)";
    case AF_KCM: return "a multiplexor of connections (KCM)";
    case AF_XDP: return "a socket with rings shared with a network driver (AF_XDP)";
    case AF_BLUETOOTH: return "a Bluetooth socket";
    case AF_CAN: return "a CAN bus socket";
    case AF_TIPC: return "a TIPC socket";
    case AF_SMC: return "an SMC socket";
    case AF_RDS: return "an RDS socket";
    default: return "a socket of an unusual family";
    }
}

static int check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    int family = socket_number(description->local, SO_DOMAIN);
    if (doubts_check(err) < 0)      /* its family may be one of the usual ones */
        return -1;
    return fail(err, "unsupported", "%s is %s, number %d, which cannot be forked; end the program that uses it", description_label(description),
                family_name(family), family);
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    return check(world, description, err);
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)plan, (void)stage;
    return check(plan->world, description, err);
}

const struct fd_kind kind_other_socket = { .name = "socket", .match = match, .check = check, .capture = capture, .emit = emit };
