/* A line that waits in a terminal, how that is set, and a message in a POSIX queue, looked at all the time: a fork that takes them for a moment is not noticed. */
#include "fidelity.h"

#include <mqueue.h>
#include <sys/ioctl.h>
#include <termios.h>

#define LINE "waits\n"

static int terminal_with_a_line(void)
{
    int master = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY)), unlock = 0;
    MUST(ioctl(master, TIOCSPTLCK, &unlock));
    int slave = MUST(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    MUST(write(master, LINE, strlen(LINE)));
    struct pollfd arrives = { slave, POLLIN, 0 };   /* a worker of the kernel carries it over */
    MUST(poll(&arrives, 1, -1));
    return slave;
}

static mqd_t queue_with_a_message(void)
{
    struct mq_attr attributes = { .mq_maxmsg = 4, .mq_msgsize = 16 };
    mqd_t queue = MUST(mq_open("/fidelity-watched", O_CREAT | O_EXCL | O_RDWR, 0600, &attributes));
    MUST(mq_send(queue, "message", 7, 3));
    return queue;
}

static void look(int slave, mqd_t queue)
{
    int bytes = 0;
    struct termios settings;
    struct mq_attr attributes;
    MUST(ioctl(slave, FIONREAD, &bytes));
    MUST(tcgetattr(slave, &settings));
    MUST(mq_getattr(queue, &attributes));
    CHECK(bytes == (int)strlen(LINE), "%d bytes wait in the terminal", bytes);
    CHECK(settings.c_lflag & ICANON && settings.c_lflag & ECHO, "the terminal has the local flags %#x", settings.c_lflag);
    CHECK(attributes.mq_curmsgs == 1, "%ld messages are in the queue", attributes.mq_curmsgs);
}

int main(void)
{
    int slave = terminal_with_a_line();
    mqd_t queue = queue_with_a_message();
    fidelity_ready();
    while (!fidelity_may_go()) {
        look(slave, queue);
        fidelity_sleep_ms(1);
    }
    look(slave, queue);
    fidelity_pass();
}
