# Endless numbered transactions of one writer (-v writer=W -v n=LAST). Each is acknowledged after its
# COMMIT has returned, because the shell stops at the first error (.bail).
BEGIN {
    for (;;) {
        n++
        print "BEGIN IMMEDIATE;"
        printf "INSERT INTO entry(writer, n, body) VALUES(%d, %d, printf('%%0*d', 40 + %d %% 500, %d));\n", writer, n, n, n
        printf "UPDATE counter SET n = %d WHERE writer = %d;\n", n, writer
        if (n > 1) printf "UPDATE entry SET touched = touched + 1 WHERE writer = %d AND n = %d;\n", writer, 1 + (n * 7919) % (n - 1)
        if (n % 25 == 0) printf "UPDATE bulk SET n = %d, body = replace(hex(zeroblob(150)), '00', printf('%%06d', %d + slot)) WHERE writer = %d;\n", n, n, writer
        print "COMMIT;"
        printf ".print ack %d %d\n", writer, n
        if (n % 10 == 0) printf "BEGIN IMMEDIATE;\nDELETE FROM entry WHERE writer = %d AND n > %d;\nROLLBACK;\n", writer, n - 50
    }
}
