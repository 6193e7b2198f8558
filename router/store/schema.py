"""The tables of the store's database.

`object` has a row for each object; `seq` is the order in which they came, and with it the order in which they leave.
`usage` has the bytes of each owner, kept by triggers, so that a limit is checked without a scan.
"""

from __future__ import annotations

APPLICATION_ID = 0x536C7374  # "Slst": the mark of a database of ours (PRAGMA application_id)
VERSION = 1  # of these tables (PRAGMA user_version)
ROW_BYTES = 256  # a row and its entries in indexes, beside the body

COLUMNS = "kind, id, owner, created_s, body, parent, blob_bytes, expires_s, is_pinned"

OF_OBJECT = ", ".join(f"object.{column}" for column in COLUMNS.split(", "))

TABLES = f"""
CREATE TABLE object (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    parent TEXT NOT NULL,
    created_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    is_pinned INTEGER NOT NULL,
    blob_bytes INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (kind, id)
);
CREATE INDEX by_id ON object (id);
CREATE INDEX by_owner ON object (owner, kind, seq);
CREATE INDEX by_parent ON object (parent, kind, seq) WHERE parent != '';
CREATE INDEX by_age ON object (expires_s) WHERE is_pinned = 0;
CREATE INDEX by_turn ON object (owner, seq) WHERE is_pinned = 0;
CREATE INDEX pinned ON object (kind, seq) WHERE is_pinned = 1;
CREATE TABLE usage (owner TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL);
CREATE TABLE left_objects (why TEXT PRIMARY KEY, num INTEGER NOT NULL);
INSERT INTO left_objects VALUES ('evicted', 0), ('expired', 0);
CREATE TRIGGER came AFTER INSERT ON object BEGIN
    INSERT INTO usage VALUES (new.owner, new.num_bytes)
        ON CONFLICT (owner) DO UPDATE SET num_bytes = num_bytes + new.num_bytes;
END;
CREATE TRIGGER changed AFTER UPDATE OF num_bytes ON object BEGIN
    UPDATE usage SET num_bytes = num_bytes + new.num_bytes - old.num_bytes WHERE owner = new.owner;
END;
CREATE TRIGGER went AFTER DELETE ON object BEGIN
    UPDATE usage SET num_bytes = num_bytes - old.num_bytes WHERE owner = old.owner;
    DELETE FROM usage WHERE owner = old.owner AND num_bytes <= 0;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""

PUT = """
INSERT INTO object (kind, id, owner, created_s, body, parent, blob_bytes, expires_s, is_pinned, num_bytes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET
    body = excluded.body, parent = excluded.parent, blob_bytes = excluded.blob_bytes,
    expires_s = excluded.expires_s, is_pinned = excluded.is_pinned, num_bytes = excluded.num_bytes
WHERE owner = excluded.owner
"""
RENEW = """
UPDATE object SET seq = (SELECT max(seq) + 1 FROM object), expires_s = ?
WHERE kind = ? AND id = ? AND owner = ?
"""
GET = f"SELECT {COLUMNS} FROM object WHERE kind = ? AND id = ? AND owner = ? AND (expires_s > ? OR is_pinned)"
CHAIN = f"""
WITH RECURSIVE chain (depth, seq, parent, total) AS (
    SELECT 0, seq, parent, num_bytes FROM object
    WHERE kind = :kind AND id = :id AND owner = :owner AND expires_s > :now
    UNION ALL
    SELECT depth + 1, object.seq, object.parent, total + object.num_bytes FROM chain
    JOIN object ON object.kind = :kind AND object.id = chain.parent
    WHERE chain.parent != '' AND object.owner = :owner AND object.expires_s > :now
        AND depth < :most AND total < :most_bytes
)
SELECT {OF_OBJECT}, depth, total FROM chain JOIN object ON object.seq = chain.seq
"""  # not sorted there, which would copy the bodies
