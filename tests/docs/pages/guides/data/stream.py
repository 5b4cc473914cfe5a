import gzip
import json

files, counts = ["0.gz", "1.gz"], [3, 2]
for name, count in zip(files, counts):
    with gzip.open(name, "wt") as file:
        file.writelines(f"{json.dumps({'row': row})}\n" for row in range(count))


# block


class Mine:
    data = data

    def tokens(self, row):
        return row["row"]


assert sorted(Mine().data()[index] for index in range(5)) == [0, 0, 1, 1, 2]
