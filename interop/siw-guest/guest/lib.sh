# Shell functions for the commands that run in the guest.
# listening PORT: true once something, siw included, listens on that TCP port.
listening() {
    busybox awk -v p="$(printf %04X "$1")" '$4 == "0A" { split($2, a, ":"); if (a[2] == p) f = 1 } END { exit !f }' /proc/net/tcp /proc/net/tcp6
}
# ready PORT: wait for that (30 s at most), then print 'READY PORT'.
ready() {
    _t=0
    while ! listening "$1"; do _t=$((_t + 1)); [ $_t -lt 600 ] || return 1; sleep 0.05; done
    echo "READY $1"
}
# serve PORT COMMAND...: start a server in the background, return when it listens; its pid is in $SERVER.
serve() {
    _p=$1; shift
    "$@" & SERVER=$!
    while ! listening "$_p"; do kill -0 $SERVER 2>/dev/null || return 1; sleep 0.05; done
}
# apart COMMAND...: its stderr is kept back until it has ended, so that the lines of its stdout stay whole.
apart() {
    _err=$(mktemp)
    "$@" 2>"$_err"
    _status=$?
    cat "$_err"
    return $_status
}
# siw_set NAME=VALUE...: set parameters of the siw that was built with them; those not named get their defaults.
siw_set() {
    for _kv in mpa_crc_required=0 mpa_crc_strict=0 mpa_version=2 peer_to_peer=0 rtr_type=192 try_gso=0 rx_kick=1 hdr_fix=1 zread_fix=1 "$@"; do
        echo "${_kv#*=}" >"/sys/module/siw/parameters/${_kv%%=*}" || return 1
    done
}
