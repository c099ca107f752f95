/* Holds one thing in namespaces of its own that no branch can have, named by the first argument. */
#include "../programs/fidelity.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/pkt_sched.h>
#include <linux/netfilter_ipv4/ip_tables.h>
#include <linux/rtnetlink.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

#define LOOPBACK 1              /* its number in every network namespace */

/* A kernel that has nothing of the kind leaves nothing to refuse. */
static bool missing(int error)
{
    return error == EPROTONOSUPPORT || error == EOPNOTSUPP || error == ENOPROTOOPT || error == ENODEV || error == ENOENT || error == EINVAL;
}

static void write_text(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY | O_CLOEXEC));
    MUST(write(fd, text, strlen(text)));
    close(fd);
}

static void enter(int namespaces)
{
    MUST(unshare(CLONE_NEWUSER | namespaces));
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", "0 0 1");
    write_text("/proc/self/gid_map", "0 0 1");
}

static void bring_up_loopback(void)
{
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP };
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST(ioctl(fd, SIOCSIFFLAGS, &request));
    close(fd);
}

/* ---- netlink ---- */

struct message {
    struct nlmsghdr head;
    char body[256];
};

static struct message begin(int type, int flags, const void *body, size_t size)
{
    struct message message = { { NLMSG_LENGTH(size), (unsigned short)type, (unsigned short)(NLM_F_REQUEST | flags), 0, 0 }, { 0 } };
    memcpy(message.body, body, size);
    return message;
}

static void add_text(struct message *message, int type, const char *text)
{
    struct rtattr *made = (void *)((char *)message + NLMSG_ALIGN(message->head.nlmsg_len));
    made->rta_type = (unsigned short)type;
    made->rta_len = (unsigned short)RTA_LENGTH(strlen(text) + 1);
    memcpy(RTA_DATA(made), text, strlen(text) + 1);
    message->head.nlmsg_len = NLMSG_ALIGN(message->head.nlmsg_len) + RTA_ALIGN(made->rta_len);
}

static void add_number(struct message *message, int type, uint32_t number)
{
    struct rtattr *made = (void *)((char *)message + NLMSG_ALIGN(message->head.nlmsg_len));
    made->rta_type = (unsigned short)type;
    made->rta_len = (unsigned short)RTA_LENGTH(sizeof number);
    number = __builtin_bswap32(number);
    memcpy(RTA_DATA(made), &number, sizeof number);
    message->head.nlmsg_len = NLMSG_ALIGN(message->head.nlmsg_len) + RTA_ALIGN(made->rta_len);
}

static int answer(int fd)
{
    struct { struct nlmsghdr head; int error; char rest[1024]; } answer;
    MUST(recv(fd, &answer, sizeof answer, 0));
    CHECK(answer.head.nlmsg_type == NLMSG_ERROR, "an answer of type %d", answer.head.nlmsg_type);
    return -answer.error;
}

/* It goes away with the socket. */
static int make_owned_table(void)
{
    struct nfgenmsg batch = { .res_id = __builtin_bswap16(NFNL_SUBSYS_NFTABLES) }, head = { .nfgen_family = NFPROTO_INET };
    struct message first = begin(NFNL_MSG_BATCH_BEGIN, 0, &batch, sizeof batch), last = begin(NFNL_MSG_BATCH_END, 0, &batch, sizeof batch);
    struct message table = begin(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWTABLE, NLM_F_ACK | NLM_F_CREATE, &head, sizeof head);
    add_text(&table, NFTA_TABLE_NAME, "fence");
    add_number(&table, NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
    char all[1024];
    size_t size = 0;
    for (const struct message *const *at = (const struct message *[]){ &first, &table, &last, NULL }; *at; at++) {
        memcpy(all + size, *at, (*at)->head.nlmsg_len);
        size += NLMSG_ALIGN((*at)->head.nlmsg_len);
    }
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (fd < 0)
        return errno;
    MUST(send(fd, all, size, 0));
    return answer(fd);
}

/* Whoever asks for an old table brings it about. */
static int ask_for_old_table(void)
{
    struct ipt_getinfo info = { .name = "filter" };
    socklen_t size = sizeof info;
    int fd = MUST(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
    return getsockopt(fd, IPPROTO_IP, IPT_SO_GET_INFO, &info, &size) < 0 ? errno : 0;
}

static int make_discipline(void)
{
    struct tcmsg body = { .tcm_family = AF_UNSPEC, .tcm_ifindex = LOOPBACK, .tcm_parent = TC_H_ROOT, .tcm_handle = 1 << 16 };
    struct message message = begin(RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, &body, sizeof body);
    add_text(&message, TCA_KIND, "pfifo");
    bring_up_loopback();
    int fd = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    MUST(send(fd, &message, message.head.nlmsg_len, 0));
    return answer(fd);
}

/* ---- the others ---- */

static int mount_formats(void)
{
    mkdir("/tmp/formats", 0755);
    return mount("formats", "/tmp/formats", "binfmt_misc", 0, NULL) < 0 ? errno : 0;
}

static int register_format(void)
{
    int error = mount_formats();
    if (!error)
        write_text("/tmp/formats/register", ":.hidden:E::refused::/bin/sh:");
    return error;
}

static int switch_formats_off(void)
{
    int error = mount_formats();
    if (!error)
        write_text("/tmp/formats/status", "0");
    return error;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int namespaces; int (*make)(void); } states[] = {
        { "owned table", CLONE_NEWNET, make_owned_table }, { "old table", CLONE_NEWNET, ask_for_old_table }, { "discipline", CLONE_NEWNET, make_discipline },
        { "format", CLONE_NEWNS, register_format }, { "formats off", CLONE_NEWNS, switch_formats_off },
    };
    mkdir(FIDELITY_DIRECTORY, 0777);
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        if (argc < 2 || strcmp(argv[1], states[i].name) != 0)
            continue;
        enter(states[i].namespaces);
        int error = states[i].make();
        CHECK(error == 0 || missing(error), "%s: %s", argv[1], strerror(error));
        if (error == 0)
            fidelity_write("made", "made");
    }
    fidelity_ready();
    for (int i = 0; i < 600 && !fidelity_may_go(); i++)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    return 0;
}
