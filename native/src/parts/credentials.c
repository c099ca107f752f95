/*
 * User and group ids, capabilities, securebits, no_new_privs, per thread as the kernel keeps them.
 *
 * The order in a branch: with SECBIT_NO_SETUID_FIXUP the changes of ids leave the capabilities alone, so that everything which needs some can
 * be done first; the final sets are put last and only take away.
 */
#include "parts.h"
#include "../namespaces.h"
#include "../proc.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define GROUPS_ASKED 64
#define MAX_CAPABILITIES 64
#define STATUS_LIMIT (1u << 20)

struct capability_data { uint32_t effective, permitted, inheritable; };

struct credentials_memo {
    uint64_t ids;               /* real, effective, saved uid; the same of gid: uint32_t[6] */
    uint64_t capabilities, groups;
    int fs_uid_op, fs_gid_op, groups_op, securebits_op, no_new_privs_op;
    int bounding_op, ambient_op;    /* the first of capability_count(); leaders only */
};

static int capability_count(void)
{
    static int count;
    if (!count) {
        struct error ignored = { 0 };
        AUTO_FREE char *text = proc_read(&ignored, 64, NULL, "/proc/sys/kernel/cap_last_cap");
        count = text ? atoi(text) + 1 : CAP_LAST_CAP + 1;
        if (count < 1 || count > MAX_CAPABILITIES)
            count = CAP_LAST_CAP + 1;
    }
    return count;
}

static int credentials_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct credentials_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->ids = query_reserve(query, 6 * sizeof(uint32_t));
    mine->groups = query_reserve(query, GROUPS_ASKED * sizeof(uint32_t));
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    uint64_t header_address = query_data(query, &header, sizeof header);
    mine->capabilities = query_reserve(query, 2 * sizeof(struct capability_data));
    ASK(query, SYS_getresuid, mine->ids, mine->ids + 4, mine->ids + 8);
    ASK(query, SYS_getresgid, mine->ids + 12, mine->ids + 16, mine->ids + 20);
    /* An id that cannot be is refused, and the answer is the present one. */
    mine->fs_uid_op = ASK(query, SYS_setfsuid, (uint64_t)-1);
    mine->fs_gid_op = ASK(query, SYS_setfsgid, (uint64_t)-1);
    mine->groups_op = ASK(query, SYS_getgroups, GROUPS_ASKED, mine->groups);
    ASK(query, SYS_capget, header_address, mine->capabilities);
    mine->securebits_op = ASK(query, SYS_prctl, PR_GET_SECUREBITS);
    mine->no_new_privs_op = ASK(query, SYS_prctl, PR_GET_NO_NEW_PRIVS);
    if (!query_is_leader(query))
        return 0;
    for (int i = 0; i < capability_count(); i++) {
        int op = ASK(query, SYS_prctl, PR_CAPBSET_READ, (uint64_t)i);
        mine->bounding_op = i ? mine->bounding_op : op;
    }
    for (int i = 0; i < capability_count(); i++) {
        int op = ASK(query, SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, (uint64_t)i);
        mine->ambient_op = i ? mine->ambient_op : op;
    }
    return 0;
}

static uint64_t set_of_answers(const struct query *query, int first_op)
{
    uint64_t set = 0;
    for (int i = 0; i < capability_count(); i++)
        if (query_result(query, first_op + i) == 1)
            set |= 1ull << i;
    return set;
}

/* More groups than were asked for: /proc has them all (in the numbering of our user namespace, which a workspace shares). */
static int groups_from_status(struct credentials *credentials, const char *status)
{
    const char *at = proc_field(status, "Groups");
    while (at && *at && *at != '\n') {
        char *end;
        unsigned long group = strtoul(at, &end, 10);
        if (end == at)
            break;
        credentials->groups = must_grow(credentials->groups, (size_t)(credentials->group_count + 1) * sizeof(uint32_t));
        credentials->groups[credentials->group_count++] = (uint32_t)group;
        at = end;
    }
    return 0;
}

static uint64_t set_from_status(const char *status, const char *key)
{
    const char *field = proc_field(status, key);
    return field ? strtoull(field, NULL, 16) : 0;
}

static bool same_sets(const struct credentials *a, const struct credentials *b)
{
    return a->inheritable == b->inheritable && a->permitted == b->permitted && a->effective == b->effective && a->securebits == b->securebits
        && memcmp(a->uid, b->uid, sizeof a->uid) == 0;
}

/* The two sets that a thread other than the leader was not asked for. */
static int complete_sets(struct query *query, const struct credentials_memo *mine, struct error *err)
{
    struct thread *thread = query_thread(query);
    struct credentials *credentials = &thread->credentials;
    if (query_is_leader(query)) {
        credentials->bounding = set_of_answers(query, mine->bounding_op);
        credentials->ambient = set_of_answers(query, mine->ambient_op);
        return 0;
    }
    const struct credentials *leader = &thread->process->threads[0].credentials;
    if (same_sets(credentials, leader)) {
        credentials->bounding = leader->bounding;
        credentials->ambient = leader->ambient;
        return 0;
    }
    AUTO_FREE char *status = proc_read(err, STATUS_LIMIT, NULL, "/proc/%d/status", thread->tid);
    if (!status)
        return -1;
    credentials->bounding = set_from_status(status, "CapBnd");
    credentials->ambient = set_from_status(status, "CapAmb");
    return 0;
}

static int collect_groups(struct query *query, const struct credentials_memo *mine, struct error *err)
{
    struct thread *thread = query_thread(query);
    struct credentials *credentials = &thread->credentials;
    int64_t count = query_result(query, mine->groups_op);
    if (count == -EINVAL) {
        AUTO_FREE char *status = proc_read(err, STATUS_LIMIT, NULL, "/proc/%d/status", thread->tid);
        return status ? groups_from_status(credentials, status) : -1;
    }
    if (count < 0)
        return fail(err, "internal", "%s: its groups cannot be read", process_label(thread->process));
    credentials->group_count = (int)count;
    credentials->groups = must_alloc((size_t)count * sizeof(uint32_t));
    memcpy(credentials->groups, query_read(query, mine->groups), (size_t)count * sizeof(uint32_t));
    return 0;
}

static uint64_t join(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

static int credentials_collect(struct query *query, void *memo, struct error *err)
{
    const struct credentials_memo *mine = memo;
    struct credentials *credentials = &query_thread(query)->credentials;
    const uint32_t *ids = query_read(query, mine->ids);
    memcpy(credentials->uid, ids, 3 * sizeof *ids);
    memcpy(credentials->gid, ids + 3, 3 * sizeof *ids);
    credentials->uid[3] = (uint32_t)query_result(query, mine->fs_uid_op);
    credentials->gid[3] = (uint32_t)query_result(query, mine->fs_gid_op);
    const struct capability_data *data = query_read(query, mine->capabilities);
    credentials->effective = join(data[0].effective, data[1].effective);
    credentials->permitted = join(data[0].permitted, data[1].permitted);
    credentials->inheritable = join(data[0].inheritable, data[1].inheritable);
    int64_t securebits = query_result(query, mine->securebits_op);
    credentials->securebits = securebits > 0 ? (uint32_t)securebits : 0;
    credentials->no_new_privs = query_result(query, mine->no_new_privs_op) == 1;
    if (collect_groups(query, mine, err) < 0)
        return -1;
    return complete_sets(query, mine, err);
}

/* ---- emit ---- */

/* In a user namespace made inside. Entering it gave every capability there, also to the bounding set. */
static bool is_nested(const struct process *process)
{
    return process->host_ids != NULL;
}

/* Capabilities that at least one thread of the world may still gain. */
static uint64_t bounding_of_all(const struct world *world)
{
    static uint64_t all;
    for (int i = 0; !all && i < world->process_count; i++)
        for (int k = 0; k < world->processes[i]->thread_count && !is_nested(world->processes[i]); k++)
            all |= world->processes[i]->threads[k].credentials.bounding;
    return all;
}

static void emit_drops(struct batch *batch, uint64_t dropped)
{
    for (int i = 0; i < capability_count(); i++)
        if (dropped >> i & 1)
            EMIT(batch, "bounding set", SYS_prctl, PR_CAPBSET_DROP, (uint64_t)i);
}

/* What nobody has is dropped once, in pid 1 before it forks the tree: some 27 calls a thread saved. The bounding set only matters at exec. */
static void emit_common_drops(struct plan *plan)
{
    static bool done;
    struct batch *batch = &plan->common[STAGE_MAKE];
    batch->who = "pid 1";
    if (!done)
        emit_drops(batch, ~bounding_of_all(plan->world));
    batch->who = NULL;
    done = true;
}

static void emit_sets(struct batch *batch, uint64_t permitted, uint64_t effective, uint64_t inheritable)
{
    struct plan *plan = batch->plan;
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct capability_data data[2] = {
        { (uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable },
        { (uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), (uint32_t)(inheritable >> 32) },
    };
    uint64_t data_address = plan_data(plan, data, sizeof data);
    EMIT(batch, "capabilities", SYS_capset, plan_data(plan, &header, sizeof header), data_address);
}

static bool same_groups(const struct host_ids *a, const struct host_ids *b)
{
    return a->group_count == b->group_count && memcmp(a->groups, b->groups, (size_t)a->group_count * sizeof *a->groups) == 0;
}

/*
 * Whoever enters a user namespace brings its groups along (restore_nest.c), and its children inherit them. Inside they can be changed only if all are
 * known there.
 */
static int emit_nested_groups(struct batch *batch, const struct process *process, struct error *err)
{
    const struct process *parent = process->parent;
    const struct namespace *user = process->namespaces[NAMESPACE_USER];
    if (!parent || !parent->host_ids || parent->namespaces[NAMESPACE_USER] != user || same_groups(process->host_ids, parent->host_ids))
        return 0;
    AUTO_FREE uint32_t *groups = must_alloc((size_t)(process->host_ids->group_count + 1) * sizeof *groups);
    bool known = !user->setgroups_denied;
    for (int i = 0; i < process->host_ids->group_count && known; i++)
        known = namespace_id_inside(user, true, process->host_ids->groups[i], &groups[i]);
    if (!known)
        return fail(err, "unsupported", "%s has other groups than its parent in a user namespace that does not allow it, which cannot be forked",
                    process_label(process));
    EMIT(batch, "groups", SYS_setgroups, (uint64_t)process->host_ids->group_count,
         plan_data(batch->plan, groups, (size_t)process->host_ids->group_count * sizeof *groups));
    return 0;
}

/* An id that the user namespace does not know reads as the overflow id; it came from outside and is there already. */
static uint64_t known_id(const struct process *process, bool group, int which, uint32_t value)
{
    uint32_t inside;
    uint32_t host = group ? process->host_ids->gid[which] : process->host_ids->uid[which];
    return namespace_id_inside(process->namespaces[NAMESPACE_USER], group, host, &inside) ? value : (uint64_t)-1;
}

static int emit_nested_ids(struct batch *batch, const struct thread *thread, struct error *err)
{
    const struct process *process = thread->process;
    const uint32_t *uid = thread->credentials.uid, *gid = thread->credentials.gid;
    if (thread == &process->threads[0] && emit_nested_groups(batch, process, err) < 0)
        return -1;
    EMIT(batch, "group ids", SYS_setresgid, known_id(process, true, 0, gid[0]), known_id(process, true, 1, gid[1]), known_id(process, true, 2, gid[2]));
    EMIT(batch, "user ids", SYS_setresuid, known_id(process, false, 0, uid[0]), known_id(process, false, 1, uid[1]), known_id(process, false, 2, uid[2]));
    if (gid[3] != gid[1])
        EMIT(batch, "file system group id", SYS_setfsgid, gid[3]);
    if (uid[3] != uid[1])
        EMIT(batch, "file system user id", SYS_setfsuid, uid[3]);
    return 0;
}

static void emit_ids(struct batch *batch, const struct credentials *credentials)
{
    struct plan *plan = batch->plan;
    const uint32_t *uid = credentials->uid, *gid = credentials->gid;
    uint64_t groups = credentials->group_count ? plan_data(plan, credentials->groups, (size_t)credentials->group_count * sizeof(uint32_t)) : 0;
    EMIT(batch, "groups", SYS_setgroups, (uint64_t)credentials->group_count, groups);
    if (gid[0] || gid[1] || gid[2])
        EMIT(batch, "group ids", SYS_setresgid, gid[0], gid[1], gid[2]);
    if (gid[3] != gid[1])
        EMIT(batch, "file system group id", SYS_setfsgid, gid[3]);
    if (uid[0] || uid[1] || uid[2])
        EMIT(batch, "user ids", SYS_setresuid, uid[0], uid[1], uid[2]);
    if (uid[3] != uid[1])
        EMIT(batch, "file system user id", SYS_setfsuid, uid[3]);
}

static int credentials_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    const struct credentials *credentials = &thread->credentials;
    const uint64_t set_pcap = 1ull << CAP_SETPCAP;
    bool nested = is_nested(thread->process);
    emit_common_drops(batch->plan);
    emit_drops(batch, (nested ? ~0ull : bounding_of_all(batch->plan->world)) & ~credentials->bounding);
    EMIT(batch, "securebits", SYS_prctl, PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP);
    if (nested && emit_nested_ids(batch, thread, err) < 0)
        return -1;
    if (!nested)
        emit_ids(batch, credentials);
    if (credentials->ambient) {
        emit_sets(batch, credentials->permitted | set_pcap, credentials->effective | set_pcap, credentials->inheritable);
        for (int i = 0; i < capability_count(); i++)
            if (credentials->ambient >> i & 1)
                EMIT(batch, "ambient capabilities", SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, (uint64_t)i);
    }
    EMIT(batch, "securebits", SYS_prctl, PR_SET_SECUREBITS, credentials->securebits);
    seccomp_emit_privileged(batch, thread);
    emit_sets(batch, credentials->permitted, credentials->effective, credentials->inheritable);
    if (credentials->no_new_privs)
        EMIT(batch, "no_new_privs", SYS_prctl, PR_SET_NO_NEW_PRIVS, 1);
    return 0;
}

const struct part part_credentials = {
    .name = "credentials", .ask = credentials_ask, .collect = credentials_collect, .emit = credentials_emit,
};
